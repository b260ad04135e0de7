// The chunks of all segments, and the stack that says what each needs of the state before it, and what it adds
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]

// Parts of the stack [T, H, N / 4]. Products of W and R with S before the chunk give U and y beyond those of S = 0.
const PART_W = 0u;
const PART_R = 1u;
const PART_U = 2u;                  // what is added to S, by value
const PART_B = 3u;                  // and by key, faded to the end of the chunk
const PART_K = 4u;                  // with two keys, what V is added by
const PART_V = 5u;
const PART_DECAY = select(6u, 4u, ONE_KEY != 0u);   // [chunks, H, N / 4], of S over a whole chunk

// The number of the first chunk of a segment. Chunks of a segment have numbers in a row, and no two have the same.
fn first_slot(segment: u32) -> u32 { return segments[segment].first / BLOCK + segment; }
