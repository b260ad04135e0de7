// Parts of state space models.

//# ssd_slots
// The chunks of all segments for matrix units: LENGTH tokens each, in slots that `ssd_scores` writes and `ssd_matrix` reads
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [SEGMENTS]

const N4 = N / 4u;
const P4 = P / 4u;
const ROW4 = H * P4 + 2u * G * N4;      // vec4s of a row of x, B and C
const LENGTH = 4u * S;
// float16 [slots, G, 2, LENGTH, N / 4]: C, then B, each row scaled by a power of two.
// float32 [slots, G, FLOATS4 vec4s]: scores [i, t], then the powers of C and of B, [LENGTH] each.
const HALVES4 = LENGTH * N4;
const POWERS4 = LENGTH * LENGTH / 4u;
const FLOATS4 = POWERS4 + LENGTH / 2u;

// The number of the first chunk of a segment. Chunks of a segment have consecutive numbers, which no other segment uses.
fn first_slot(segment: u32) -> u32 { return segments[segment].first / LENGTH + segment; }

//# centre/mean: The mean of a group.
// needs lanes: reduce_add
fn centre_of(first: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var d = lane; d < OWN; d += WG) {
        sum += x[first + d];
    }
    return reduce_add(sum, lane) / f32(OWN);
}

//# centre/none
fn centre_of(_first: u32, _lane: u32) -> f32 { return 0.0; }

//# shift/each
@group(0) @binding(4) var<storage, read> bias: array<f32>;      // [G, D / G]

fn shift_at(d: u32) -> f32 { return bias[d]; }

//# shift/none
fn shift_at(_d: u32) -> f32 { return 0.0; }
