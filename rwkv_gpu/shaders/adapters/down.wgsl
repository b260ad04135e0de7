// low_i[t, r] = s[t, r] · (A_i[r, :] · norm(x_i[t, :]))      SHARES workgroups per row t and matrix divide its columns r
//
// Columns whose s is zero are skipped. The first workgroups may quantise the same x, for the products that add the result.
// needs extra work: extra_work; lanes: reduce_add, reduce_add4, reduce_max, reduce_min; low: low_scale, put_columns
// needs norm: gained; rows: x4
@group(0) @binding(1) var<storage, read> a: array<vec4u>;           // eight float16 each: of each matrix [R, A_STRIDE]
@group(0) @binding(4) var<storage, read> scales: array<vec4f>;      // [T, R / 4]
@group(0) @binding(5) var<storage, read_write> low: array<vec4f>;   // [T, R / 4] of each matrix, then optionally [T] ranges of columns

const EIGHTS = (K + 7u) / 8u;
const EVEN = K % 8u == 0u;
const FOURS = (COLUMN_FOURS + SHARES - 1u) / SHARES;    // vec4s of columns per workgroup

struct AdapterInput {
    a: u32,     // the start of A, in groups of eight numbers
    x: u32,     // in floats
    low: u32,
}

fn run(group: u32, lane: u32) {
    if group < BESIDE {
        extra_work(group, lane);
        return;
    }
    let t = (group - BESIDE) % ROWS;
    if t >= step.rows {
        return;
    }
    let share = (group - BESIDE) / ROWS;
    if share < FINDS_COLUMNS {        // a separate workgroup, so that the others need not wait for it
        find_columns(t, lane);
        return;
    }
    let own = INPUTS[(share - FINDS_COLUMNS) / SHARES];
    let first = (share - FINDS_COLUMNS) % SHARES;
    var wanted: array<vec4f, FOURS>;
    for (var n = 0u; n < FOURS; n++) {      // all loads are issued at once
        wanted[n] = scales[t * COLUMN_FOURS + min(first + n * SHARES, COLUMN_FOURS - 1u)];
    }
    for (var n = 0u; n < FOURS; n++) {
        let c = first + n * SHARES;
        if c < COLUMN_FOURS {
            multiply(own, t, c, wanted[n], lane);
        }
    }
}

fn multiply(own: AdapterInput, t: u32, c: u32, wanted: vec4f, lane: u32) {
    let to = own.low + t * COLUMN_FOURS + c;
    if all(wanted == vec4f()) {
        if lane == 0u {
            low[to] = vec4f();      // the column may lie between nonzero columns of the row
        }
        return;
    }
    let row = own.a + 4u * c * A_STRIDE;
    var sums = vec4f();
    var squares = 0.0;
    for (var e = lane; e < EIGHTS; e += WG) {
        let first = x4(own.x + t * K, 8u * e, K);
        let within = EVEN || 8u * e + 4u < K;
        let second = select(vec4f(), x4(own.x + t * K, select(0u, 8u * e + 4u, within), K), within);
        if ROOTED {
            squares += dot(first, first) + dot(second, second);
        }
        let near = gained(first, 8u * e);
        let far = gained(second, select(0u, 8u * e + 4u, within));
        sums += vec4f(
            dot8(a[row + e], near, far),
            dot8(a[row + A_STRIDE + e], near, far),
            dot8(a[row + 2u * A_STRIDE + e], near, far),
            dot8(a[row + 3u * A_STRIDE + e], near, far),
        );
    }
    let found = reduce_add4(sums, lane);
    if ROOTED {
        squares = reduce_add(squares, lane);
    }
    if lane == 0u {
        low[to] = low_scale(squares) * wanted * found;
    }
}

fn dot8(weights: vec4u, first: vec4f, second: vec4f) -> f32 {
    let near = vec4f(unpack2x16float(weights.x), unpack2x16float(weights.y));
    let far = vec4f(unpack2x16float(weights.z), unpack2x16float(weights.w));
    return dot(near, first) + dot(far, second);
}

// The range of nonzero columns of row t, in vec4s.
fn find_columns(t: u32, lane: u32) {
    var first = COLUMN_FOURS;
    var end = 0.0;
    for (var c = lane; c < COLUMN_FOURS; c += WG) {
        if any(scales[t * COLUMN_FOURS + c] != vec4f()) {
            first = min(first, c);
            end = f32(c + 1u);
        }
    }
    let least = reduce_min(first, lane);
    let most = reduce_max(end, lane);
    if lane == 0u {
        put_columns(t, f32(least), most);
    }
}
