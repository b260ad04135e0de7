// A head has one decay, whatever its token.
@group(0) @binding(2) var<storage, read> decays: array<f32>;            // [H]

var<private> head_decay: vec4f;

fn prepare_decay(block: Block, _lane: u32) { head_decay = vec4f(decays[block.head]); }
fn decay_at(_token: u32, _i: u32) -> vec4f { return head_decay; }
