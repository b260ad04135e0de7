// The answer of attention is multiplied, each number by its own gate.
@group(0) @binding(12) var<storage, read> gates: array<vec4f>;          // [T, H, N / 4]

fn gated(y: vec4f, i: u32) -> vec4f { return gates[i] * y; }
