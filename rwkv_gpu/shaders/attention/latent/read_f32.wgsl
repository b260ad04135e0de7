// Latents as float32.
// needs attention/eight: Eight
fn latent8(i: u32) -> Eight { return Eight(bitcast<vec4f>(keys[2u * i]), bitcast<vec4f>(keys[2u * i + 1u])); }

fn latent4(i: u32) -> vec4f { return bitcast<vec4f>(keys[i]); }
