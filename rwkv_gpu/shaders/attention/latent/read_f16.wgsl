// Latents as halves, two to a word: 8 dims are one load.
// needs attention/eight: Eight
fn latent8(i: u32) -> Eight {
    let words = keys[i];
    return Eight(halves(words.xy), halves(words.zw));
}

fn latent4(i: u32) -> vec4f {
    let words = keys[i / 2u];
    return halves(select(words.xy, words.zw, i % 2u == 1u));
}

fn halves(words: vec2u) -> vec4f { return vec4f(unpack2x16float(words.x), unpack2x16float(words.y)); }
