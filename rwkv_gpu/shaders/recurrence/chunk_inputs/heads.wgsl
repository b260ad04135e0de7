// q, k and v of each head, one head after the other, and one decay for all tokens of a head
// needs kernel: Inputs
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;             // [T, H, 3, N / 4]
@group(0) @binding(2) var<storage, read> decays: array<f32>;            // [H]

fn prepare_tokens(_block: Block, _lane: u32) {}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let k = qkv[place_of(block, token, 1u) + n];
    return Inputs(qkv[place_of(block, token, 0u) + n], vec4f(decays[block.head]), k, vec4f(), k);
}

fn value_at(block: Block, token: u32, n: u32) -> vec4f { return qkv[place_of(block, token, 2u) + n]; }

// Where q (0), k (1) or v (2) of a token begins.
fn place_of(block: Block, token: u32, which: u32) -> u32 {
    return (3u * ((block.row + token) * H + block.head) + which) * N4;
}
