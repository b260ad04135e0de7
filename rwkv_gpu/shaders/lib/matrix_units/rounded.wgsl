// Rows of x as float16 with a power of two for each, as matrix units multiply them: how they are rounded, where they lie
//
// The power takes the largest of a row to 2^14 or just below, so that nothing overflows, and what is lost below is less than
// 2^-38 of it. Of each four columns, the second and the third change places: decoding bytes yields them so. Four columns
// lie in rows, or in the fragments that matrix units load: of S columns of S rows each, by columns. Exponents follow.
const LARGEST = 14;
const FRAGMENTS = (ROUNDED_ROWS + S - 1u) / S;  // of S columns

fn exponent_of(most: f32) -> i32 { return frexp(max(most, 1e-30)).exp - LARGEST; }

fn halves_of(values: vec4f) -> vec2u { return vec2u(pack2x16float(values.xz), pack2x16float(values.yw)); }

fn halves_of_exponent(exponent: i32) -> vec2u { return vec2u(pack2x16float(vec2f(f32(exponent), 0.0)), 0u); }

// Four e of row t, of rows of so many.
fn place_of(t: u32, e: u32, padded: u32) -> u32 {
    let fragment = e / (S / 4u) * FRAGMENTS + t / S;
    return select((fragment * S + t % S) * (S / 4u) + e % (S / 4u), t * padded + e, BY_ROWS == 1u);
}

fn place_of_exponent(t: u32, padded: u32) -> u32 {
    return select(FRAGMENTS * S, ROUNDED_ROWS, BY_ROWS == 1u) * padded + t;
}
