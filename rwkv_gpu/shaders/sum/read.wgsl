// A row that is another one and what workgroups have added to it.
@group(0) @binding(2) var<storage, read> x: array<vec4f>;       // [D / 4]
@group(0) @binding(12) var<storage, read> added: array<vec4i>;   // [2, D / 4]

fn row_at(d: u32) -> vec4f {
    return x[d] + (vec4f(added[d]) * SMALL + vec4f(added[D / 4u + d]) * LARGE);
}
