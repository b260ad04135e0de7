// What quantised formats share: the q of a run as floats, and small pieces of a plane by their number in it.
fn run_quants(i: u32) -> array<vec4f, RUN / 4u> {
    var packed = run_packed(i);
    var q: array<vec4f, RUN / 4u>;
    for (var j = 0u; j < RUN / 4u; j++) {
        q[j] = vec4f(unpack4xI8(packed[j]));
    }
    return q;
}

fn word_at(start: u32, n: u32) -> u32 { return w[start + n / 4u][n % 4u]; }

fn half_at(start: u32, n: u32) -> f32 { return unpack2x16float(word_at(start, n / 2u))[n % 2u]; }

fn byte_at(start: u32, n: u32) -> u32 { return (word_at(start, n / 4u) >> (8u * (n % 4u))) & 0xffu; }
