// w, a, gate and v_gate of a lane's channels, as others computed them.
@group(0) @binding(2) var<storage, read> gates: array<vec4f>;           // [T, H, N / 4] each, at GATES of a stack

const ABSENT = 0xffffffffu;

alias Asked = array<vec4f, ROWS>;

fn ask(at: Place, _lane: u32) -> Asked {
    var found: Asked;
    for (var j = 0u; j < ROWS; j++) {
        let i = at.token * D4 + at.head * N4 + (at.row + j) / 4u;
        for (var m = 0u; m < 4u; m++) {
            found[j][m] = NEUTRAL[m];
            if GATES[m] != ABSENT {
                found[j][m] = gates[GATES[m] + i][(at.row + j) % 4u];
            }
        }
    }
    return found;
}

fn answer(asked: Asked, _at: Place, _lane: u32) -> array<vec4f, ROWS> { return asked; }
