// What quantised formats share: the q of a run as bytes, four to a word, and small pieces of a plane by their number in it.
// needs format: packed_of, run_raw
alias Four = u32;

fn fours_of(raw: Raw, i: u32) -> array<Four, RUN / 4u> {
    var packed = packed_of(raw, i);
    var fours: array<Four, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        fours[j] = packed[j];
    }
    return fours;
}

fn run_packed(i: u32) -> array<u32, RUN / 4u> {
    var fours = fours_of(run_raw(i), i);
    var packed: array<u32, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        packed[j] = fours[j];
    }
    return packed;
}

fn in_order(low: vec4u, high: vec4u) -> array<u32, 8> {
    return array<u32, 8>(low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
}

// Half n of a plane, from its word n / 2, and byte n from its word n / 4.
fn half_of(word: u32, n: u32) -> f32 { return unpack2x16float(word)[n % 2u]; }

fn byte_of(word: u32, n: u32) -> u32 { return (word >> (8u * (n % 4u))) & 0xffu; }
