// What changes from one replay to the next.
struct Step {
    rows: u32,      // T; a plan is launched for its bucket, and what lies beyond returns early
}

@group(0) @binding(0) var<uniform> step: Step;

// The number of a workgroup in a grid that may be folded into two dimensions.
fn flat(group: vec3u, groups: vec3u) -> u32 {
    return group.x + group.y * groups.x;
}
