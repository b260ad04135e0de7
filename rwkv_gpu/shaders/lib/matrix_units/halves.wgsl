// Four float16 of two words, as which they are loaded
//
// NVIDIA's compiler takes vectors of float16 apart right where it loads them, and so waits for them there, however much later
// they are wanted. Words it leaves alone.
fn halves(words: vec2u) -> vec4<f16> {
    return vec4<f16>(vec2<f16>(unpack2x16float(words.x)), vec2<f16>(unpack2x16float(words.y)));
}
