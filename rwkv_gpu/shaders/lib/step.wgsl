// The data of a step, which changes from one replay to the next.
struct Step {
    rows: u32,      // T; a plan is launched for `bucket` rows, and the surplus workgroups return early
    segments: u32,  // sequences that the rows belong to
    outputs: u32,   // R, rows whose logits are needed
    bucket: u32,    // maximum rows of the plan
    positions: u32, // total positions of all sequences, including these rows
    longest: u32,   // positions of the longest sequence
}

@group(0) @binding(0) var<uniform> step: Step;

// Consecutive rows that are the next tokens of one sequence.
struct Segment {
    first: u32,     // row
    count: u32,     // number of rows
    start: u32,     // position of the first; at 0 the sequence has no state yet
    source: u32,    // the state that is read
    written: u32,   // the state that is written; can be the same
    kept: u32,      // number of intermediate states to save, one after each row except the last; or 0
    early: vec4u,   // the numbers of these states
    late: vec4u,
}

// The number of the state saved after one of the rows.
fn kept_state(segment: Segment, row: u32) -> u32 {
    if row < 4u {
        return segment.early[row];
    }
    return segment.late[row - 4u];
}

// The distance between parts of a stack in vec4s, a multiple of 256 bytes, for rows of `width` vec4s.
fn apart(width: u32) -> u32 {
    return (step.bucket * width + 15u) / 16u * 16u;
}

// The same in numbers, for rows that need not be whole vec4s.
fn numbers_apart(width: u32) -> u32 {
    return (step.bucket * width + 63u) / 64u * 64u;
}

// The number of a workgroup in a grid that may be folded into two dimensions.
fn flat(group: vec3u, groups: vec3u) -> u32 {
    return group.x + group.y * groups.x;
}
