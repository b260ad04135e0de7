// r, k, v and the gates of a token, from their products
// needs lib/step: apart; value: value
@group(0) @binding(1) var<storage, read> rkv: array<vec4f>;             // r, k, v [T, H, N / 4], the parts R, K, V of a stack
@group(0) @binding(2) var<storage, read> gates: array<vec4f>;           // w, a, gate, v_gate [T, H, N / 4], the parts W, A, G, VG

// A vec4 of r, k or v.
fn part_of(part: u32, place: u32) -> vec4f { return rkv[part * apart(D4) + place]; }

// A vec4 of w or a.
fn gate_part(part: u32, place: u32) -> vec4f { return gates[part * apart(D4) + place]; }

// The key that is added to S. d is its index in a row.
fn key_of(place: u32, d: u32) -> vec4f {
    return part_of(K, place) * (1.0 + (gate_part(A, place) - 1.0) * vectors[D4 + d]);
}

fn own_value(place: u32) -> vec4f { return value(place, part_of(V, place)); }
