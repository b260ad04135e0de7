// Mamba-2: k is dt B and r is C, shared by the heads of a group; x is added, nothing is removed
// needs kernel: Inputs
// needs lib/softplus: softplus
@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P], B and C [T, G, N] in one row
@group(0) @binding(2) var<storage, read> projected: array<f32>;         // [T, STRIDE], dt [H] last
@group(0) @binding(3) var<storage, read> parameters: array<f32>;        // the bias of dt, A and D, [H] each

const ROW4 = V4 + 2u * G * N4;          // vec4s of a row of x, B and C

var<workgroup> token_steps: array<vec2f, BLOCK>;    // dt and e^(dt A)

fn prepare_tokens(block: Block, lane: u32) {
    if lane < block.tokens {
        let raw = projected[(block.row + lane + 1u) * STRIDE - H + block.head] + parameters[block.head];
        let dt = softplus(raw);
        token_steps[lane] = vec2f(dt, exp(dt * parameters[H + block.head]));
    }
    workgroupBarrier();
}

fn inputs_at(block: Block, token: u32, n: u32) -> Inputs {
    let at = (block.row + token) * ROW4 + V4 + block.head / (H / G) * N4 + n;
    let steps = token_steps[token];
    let k = steps.x * xbc[at];
    return Inputs(xbc[at + G * N4], vec4f(steps.y), k, vec4f(), k);
}

fn value_at(block: Block, token: u32, n: u32) -> vec4f {
    return xbc[(block.row + token) * ROW4 + block.head * P4 + n];
}
