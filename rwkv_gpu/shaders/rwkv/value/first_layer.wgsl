// A later layer's v, mixed with the first's.
// needs lib/step: apart
@group(0) @binding(7) var<storage, read> v_first: array<vec4f>;         // [T, H, N / 4]

fn value(token: u32, v: vec4f) -> vec4f { return v + (v_first[token] - v) * gates[VG * apart(D4) + token]; }
