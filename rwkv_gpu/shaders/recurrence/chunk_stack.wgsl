// The chunks of all segments, and the stack: the factors by which a chunk reads the state before it, and the values that it adds
// needs lib/step: apart
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]

// Parts of the stack, [T, H, N / 4] each: first those by key, then those by value. W and R times S before the chunk give
// U and y beyond those of S = 0.
const PART_R = 0u;
const PART_B = 1u;                  // the keys with which U is added to S, decayed to the end of the chunk
const PART_W = 2u;                  // used if values are removed from S
const PART_K = 3u;                  // used if k and b differ: the keys with which V is added, as B
const PART_U = 0u;
const PART_V = 1u;                  // used if k and b differ
const KEY_PARTS = 2u + REMOVES + 1u - ONE_KEY;
const VALUE_PARTS = 2u - ONE_KEY;
const KEPT_SLOTS = 10u;

fn key_part(part: u32) -> u32 { return part * apart(D4); }
fn value_part(part: u32) -> u32 { return key_part(KEY_PARTS + part); }

// The place of the decay of S over a chunk, [chunks, H, N / 4], that begins after `done` tokens of a segment. A segment whose
// intermediate states are saved has at most nine tokens, and one decay for each.
fn decay_place(segment: u32, done: u32, head: u32) -> u32 {
    var slot = segments[segment].first / BLOCK + KEPT_SLOTS * segment;
    if segments[segment].kept > 0u {
        slot += done;
    } else {
        slot += done / BLOCK;
    }
    return value_part(VALUE_PARTS) + (slot * H + head) * N4;
}

// The number of the first chunk of a segment. Chunks of a segment have consecutive numbers, which no other segment uses.
fn first_slot(segment: u32) -> u32 { return segments[segment].first / BLOCK + segment; }
