// The chunks of all segments for matrix units: LENGTH tokens each, in slots of what `ssd_scores` writes for `ssd_matrix`
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [SEGMENTS]

const N4 = N / 4u;
const P4 = P / 4u;
const ROW4 = H * P4 + 2u * G * N4;      // vec4s of a row of x, B and C
const LENGTH = 4u * S;
// Of float16 [slots, G, 2, LENGTH, N / 4]: C, then B, each row scaled by a power of two.
// Of float32 [slots, G, FLOATS4 vec4s]: scores [i, t], then the powers of C and of B, [LENGTH] each.
const HALVES4 = LENGTH * N4;
const POWERS4 = LENGTH * LENGTH / 4u;
const FLOATS4 = POWERS4 + LENGTH / 2u;

// The number of the first chunk of a segment. Chunks of a segment have numbers in a row, and no two have the same.
fn first_slot(segment: u32) -> u32 { return segments[segment].first / LENGTH + segment; }
