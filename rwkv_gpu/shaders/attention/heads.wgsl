// Norms and rotates the heads of q, k and v after their products, and writes k and v to their pages.
// needs attention/eight: Eight; attention/turns: turn_of; head norm: norm_start, root_of, weight_after, weight_before
// needs lib/step: apart; query scale: query_scale; rope: is_second, pair_of, partner_of; value norm: value_scale
// needs write: put_key, put_value
@group(0) @binding(1) var<storage, read> qkv: array<vec4f>;             // q [T, H, N / 4], k and v [T, KV, N / 4], a stack
@group(0) @binding(4) var<storage, read> places: array<vec2u>;          // [T] of (position, its row among all pages)
@group(0) @binding(5) var<storage, read_write> keys: array<CacheWord>;  // [pages, PAGE, KV, N]
@group(0) @binding(6) var<storage, read_write> values: array<CacheWord>; // [pages, PAGE, KV, N]

const HALF = DIMS / 2u;
const K_AT = H * N / 4u;    // the first vec4 of k, after q
const V_AT = KV * N / 4u;   // vec4s from k to v

// 8 rotated dims of a head of row t: a scaled query, or a key, which follows the H heads of q.
fn turned8(t: u32, head: u32, c: u32) -> Eight {
    let is_key = head >= H;
    let start = select((t * H + head) * (N / 4u), apart(K_AT) + (t * KV + head - H) * (N / 4u), is_key);
    let norm = norm_start(head);
    let position = places[t].x;
    let scale = head_scale(start, t, is_key) * select(query_scale(position), 1.0, is_key);
    var x: array<f32, 8>;
    for (var j = 0u; j < 8u; j++) {
        let d = 8u * c + j;
        x[j] = scale * element(start, norm, d);
        if d < DIMS {
            let turn = turn_of(position, pair_of(d));
            let other = scale * element(start, norm, partner_of(d));
            x[j] = x[j] * turn.x + select(-other, other, is_second(d)) * turn.y;
        }
        x[j] *= weight_after(norm + d);
    }
    return Eight(vec4f(x[0], x[1], x[2], x[3]), vec4f(x[4], x[5], x[6], x[7]));
}

// Writes 8 dims of a head's key and value of row t to their pages.
fn write_kv(t: u32, head: u32, c: u32, key: Eight) {
    let i = (places[t].y * KV + head) * (N / 8u) + c;
    put_key(i, t, head, key);
    put_value(i, t, head, own_value8(t, head, c));
}

// 8 dims of a head of row t's value.
fn own_value8(t: u32, head: u32, c: u32) -> Eight {
    let start = value_at(t, head);
    let scale = value_scale(start);
    let v = start + 2u * c;
    return Eight(scale * qkv[v], scale * qkv[v + 1u]);
}

fn value_at(t: u32, head: u32) -> u32 { return apart(K_AT) + apart(V_AT) + (t * KV + head) * (N / 4u); }

fn element(start: u32, norm: u32, d: u32) -> f32 {
    return qkv[start + d / 4u][d % 4u] * weight_before(norm + d);
}

fn head_scale(start: u32, t: u32, is_key: bool) -> f32 {
    if WHOLE {
        let heads = select(H, KV, is_key);
        let first = select(t * H, t * KV, is_key) * (N / 4u) + select(0u, apart(K_AT), is_key);
        var squares = 0.0;
        for (var n = 0u; n < heads; n++) {
            squares += squares_from(first + n * (N / 4u));
        }
        return root_of(squares, heads * N);
    }
    if NORMED {
        return root_of(squares_from(start), HEAD);
    }
    return 1.0;
}

// The sum of the squares of a head.
fn squares_from(start: u32) -> f32 {
    var squares = vec4f();
    for (var i = start; i < start + N / 4u; i += 2u) {
        squares += qkv[i] * qkv[i] + qkv[i + 1u] * qkv[i + 1u];
    }
    return dot(squares, vec4f(1.0));
}
