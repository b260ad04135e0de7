// Parts of RWKV-7's kernels.

//# before/row: The previous row, computed by an op.
@group(0) @binding(2) var<storage, read> before: array<f32>;    // [T, D]

fn before_at(t: u32, d: u32) -> f32 { return before[t * D + d]; }

//# before/state: The previous row from the state of the sequence, or zeros for a new one. Row t is of segment t.
@group(0) @binding(2) var<storage, read> shift_state: array<f32>;       // [states, D]
@group(0) @binding(7) var<storage, read> segments: array<Segment>;      // [T]

fn before_at(t: u32, d: u32) -> f32 {
    return select(shift_state[segments[t].source * D + d], 0.0, segments[t].start == 0u);
}

//# gate/gate
// needs lib/step: apart
fn gate_of(token: u32) -> vec4f { return gates[G * apart(D4) + token]; }

//# gate/none
fn gate_of(token: u32) -> vec4f { return vec4f(1.0); }

//# value/first_layer: A later layer's v, mixed with the first's.
// needs lib/step: apart
@group(0) @binding(7) var<storage, read> v_first: array<vec4f>;         // [T, H, N / 4]

fn value(token: u32, v: vec4f) -> vec4f { return v + (v_first[token] - v) * gates[VG * apart(D4) + token]; }

//# value/own: The first layer's v, as it is.
fn value(token: u32, v: vec4f) -> vec4f { return v; }
