// v of the first layer, that a later layer's is mixed with.
@group(0) @binding(7) var<storage, read> v_first: array<vec4f>;         // [T, H, N / 4]

fn first_of(token: u32) -> vec4f { return v_first[token]; }
