// The weight of the norm is all that the output reads.
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // [N / 4]

const GAIN_AT = 0u;

fn prepare_output(_block: Block, _lane: u32) { workgroupBarrier(); }
fn parameter_at(i: u32) -> f32 { return vectors[i / 4u][i % 4u]; }
