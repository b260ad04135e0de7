// Mamba-2: y = (S C + D x) silu(z)
// needs kernel: item_place, y4
@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P] and more in a row
@group(0) @binding(2) var<storage, read> projected: array<f32>;         // [T, STRIDE], z [H, P] first
@group(0) @binding(3) var<storage, read> parameters: array<f32>;        // the bias of dt, A and D, [H] each

const ROW4 = V4 + 2u * G * N4;          // vec4s of a row of x, B and C

fn prepare_output(_block: Block, _lane: u32) { workgroupBarrier(); }

// x, and silu(z).
struct Skip {
    x: vec4f,
    gate: vec4f,
}

fn last_of(block: Block, i: u32) -> Skip {
    if i >= block.tokens * P4 {
        return Skip();
    }
    let row = block.row + i / P4;
    let d = block.head * P4 + i % P4;
    let at = row * STRIDE + 4u * d;
    let z = vec4f(projected[at], projected[at + 1u], projected[at + 2u], projected[at + 3u]);
    return Skip(xbc[row * ROW4 + d], z / (1.0 + exp(-z)));
}

fn conclude(first: Skip, block: Block, lane: u32) {
    for (var i = lane; i < block.tokens * P4; i += WG) {
        var last = first;
        if i != lane {
            last = last_of(block, i);
        }
        y[item_place(block, i)] = fma(vec4f(parameters[2u * H + block.head]), last.x, y4(i)) * last.gate;
    }
}
