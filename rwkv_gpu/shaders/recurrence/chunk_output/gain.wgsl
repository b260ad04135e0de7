// The weight of the norm is all that the output reads.
@group(0) @binding(3) var<storage, read> vectors: array<f32>;           // [N]

const GAIN_AT = 0u;

fn prepare_output(_block: Block, _lane: u32) { workgroupBarrier(); }
