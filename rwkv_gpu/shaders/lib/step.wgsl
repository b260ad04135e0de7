// What changes from one replay to the next.
struct Step {
    rows: u32,      // T; a plan is launched for its bucket, and what lies beyond returns early
    segments: u32,  // sequences that the rows belong to
    outputs: u32,   // R, rows whose logits are asked for
    bucket: u32,    // rows that the plan is made for
    positions: u32, // of all sequences, with these rows
    longest: u32,   // of the longest
}

@group(0) @binding(0) var<uniform> step: Step;

// Consecutive rows that are the next tokens of one sequence.
struct Segment {
    first: u32,     // row
    count: u32,     // of rows
    start: u32,     // position of the first; at 0 the sequence has no state yet
    source: u32,    // the state that is read
    written: u32,   // the state that is written, maybe the same
    kept: u32,      // states that are written on the way, after the first rows; 0, or one for each row but the last
    early: vec4u,   // these states
    late: vec4u,
}

// The state after one of the rows whose states are kept.
fn kept_state(segment: Segment, row: u32) -> u32 {
    if row < 4u {
        return segment.early[row];
    }
    return segment.late[row - 4u];
}

// How many vec4s apart the parts of a stack begin, whose rows are `width` vec4s: at multiples of 256 bytes.
fn apart(width: u32) -> u32 {
    return (step.bucket * width + 15u) / 16u * 16u;
}

// The same in numbers, of rows that may end within a vec4.
fn numbers_apart(width: u32) -> u32 {
    return (step.bucket * width + 63u) / 64u * 64u;
}

// The number of a workgroup in a grid that may be folded into two dimensions.
fn flat(group: vec3u, groups: vec3u) -> u32 {
    return group.x + group.y * groups.x;
}
