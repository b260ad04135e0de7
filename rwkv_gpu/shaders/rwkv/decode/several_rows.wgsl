// A row of several sequences that have one each.
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [T]

fn segment_of(token: u32) -> Segment { return segments[token]; }
fn beyond(token: u32) -> bool { return token >= step.rows; }
