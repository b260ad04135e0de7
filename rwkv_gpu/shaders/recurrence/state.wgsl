// States in memory, four numbers of a row at a time.

//# f32
@group(0) @binding(5) var<storage, read_write> state: array<vec4f>;     // [states, H, P, N / 4], value by key

fn load_state(place: u32) -> vec4f { return state[place]; }
fn store_state(place: u32, values: vec4f) { state[place] = values; }

//# f16
@group(0) @binding(5) var<storage, read_write> state: array<vec2u>;     // [states, H, P, N / 4], value by key

fn load_state(place: u32) -> vec4f { return vec4f(unpack2x16float(state[place].x), unpack2x16float(state[place].y)); }

fn store_state(place: u32, values: vec4f) {
    state[place] = vec2u(pack2x16float(values.xy), pack2x16float(values.zw));
}
