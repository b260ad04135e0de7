// What the answer of an expert is multiplied by, as part of its share.
@group(0) @binding(13) var<storage, read> answer_scales: array<f32>;    // [E]

fn answer_scale(e: u32) -> f32 { return answer_scales[e]; }
