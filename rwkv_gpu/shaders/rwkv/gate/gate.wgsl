// needs lib/step: apart
fn gate_of(token: u32) -> vec4f { return gates[G * apart(D4) + token]; }
