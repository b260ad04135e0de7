// w, a, gate and v_gate of a lane's channels, as others computed them.
// needs kernel: channel
@group(0) @binding(2) var<storage, read> stack: array<vec4f>;           // [T, H, N / 4] each, at GATES

const ABSENT = 0xffffffffu;

alias LoadedGates = u32;      // nothing

fn load_gates(_at: Place, _lane: u32) -> LoadedGates { return 0u; }
fn put(_asked: LoadedGates, _lane: u32) {}

fn gates_from(m: u32, _d: u32, token: u32) -> vec4f {
    var places = GATES;
    if places[m] == ABSENT {
        return vec4f(NEUTRAL[m]);
    }
    return stack[places[m] + token];
}

fn gate_values(_asked: LoadedGates, at: Place) -> array<vec4f, ROWS> {
    var found: array<vec4f, ROWS>;
    for (var j = 0u; j < ROWS; j++) {
        for (var m = 0u; m < 4u; m++) {
            found[j][m] = channel(OF_GATES + m, at.row + j);
        }
    }
    return found;
}
