// A sum that many workgroups add to, whoever comes first: integers, D of small units, then D of large ones. At most 256
// workgroups add to one: what each leaves to the small units is half a large one at most, 2^23 of them.
const SMALL = 1.0 / 67108864.0;     // 2^-26
const LARGE = 0.25;
