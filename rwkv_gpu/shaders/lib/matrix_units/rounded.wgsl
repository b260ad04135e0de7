// Rows of x as float16 with a power of two for each, as matrix units multiply them: how they are rounded, where they lie
//
// The power takes the largest of a row to 2^14 or just below, so that nothing overflows, and what is lost below is less than
// 2^-38 of it. Of each four columns, the second and the third change places: decoding bytes yields them so. Four columns
// lie in rows, or, with FRAGMENTS, by steps of 64 columns, of so many times S rows each, where fours of the first half and of
// the second alternate, as `skinny_gemm_matrix` has them. Exponents follow.
const LARGEST_EXPONENT = 14;

fn exponent_of(most: f32) -> i32 { return frexp(max(most, 1e-30)).exp - LARGEST_EXPONENT; }

fn halves_of(values: vec4f) -> vec2u { return vec2u(pack2x16float(values.xz), pack2x16float(values.yw)); }

fn halves_of_exponent(exponent: i32) -> vec2u { return vec2u(pack2x16float(vec2f(f32(exponent), 0.0)), 0u); }

// Four e of row t, of rows of so many.
fn place_of_four(t: u32, e: u32, padded: u32) -> u32 {
    let column = e % 8u * 2u + e / 8u % 2u;
    return select((e / 16u * FRAGMENTS * S + t) * 16u + column, t * padded + e, FRAGMENTS == 0u);
}

fn place_of_exponent(t: u32, padded: u32) -> u32 {
    return select(FRAGMENTS * S, ROUNDED_ROWS, FRAGMENTS == 0u) * padded + t;
}
