// low_i[t, r] = s[t, r] · (A_i[r, :] · norm(x_i[t, :]))      a workgroup for four columns r of a row t; none where s is zero
//
// Also which columns each row has of s, so that whoever adds B low goes through no others.
// needs lanes: reduce_add2, reduce_max, reduce_min
// needs norm: gained, root
@group(0) @binding(1) var<storage, read> a: array<vec4f>;           // of each matrix [R, A_STRIDE]
@group(0) @binding(2) var<storage, read> x: array<vec4f>;           // of each matrix [T, K / 4]
@group(0) @binding(3) var<storage, read_write> low: array<vec4f>;   // of each matrix [T, R / 4], then [T] columns
@group(0) @binding(4) var<storage, read> scales: array<vec4f>;      // [T, R / 4]

struct AdapterInput {
    a: u32,     // where A starts, in vec4s
    x: u32,
    low: u32,
}

fn run(group: u32, lane: u32) {
    let t = group % ROWS;
    if t >= step.rows {
        return;
    }
    if group < ROWS {       // apart from the others, which would wait for it
        find_columns(t, lane);
        return;
    }
    let own_group = group / ROWS - 1u;
    let c = own_group % COLUMN_FOURS;
    let wanted = scales[t * COLUMN_FOURS + c];
    let own = INPUTS[own_group / COLUMN_FOURS];
    if all(wanted == vec4f()) {
        low[own.low + t * COLUMN_FOURS + c] = vec4f();      // it may lie between columns that the row has
        return;
    }
    let first = own.a + 4u * c * A_STRIDE;
    var sums = vec4f();
    var squares = 0.0;
    for (var k = lane; k < K / 4u; k += WG) {
        let values = x[own.x + t * (K / 4u) + k];
        if NORMED {
            squares += dot(values, values);
        }
        let own_x = gained(values, 4u * k);
        sums += vec4f(
            dot(a[first + k], own_x),
            dot(a[first + A_STRIDE + k], own_x),
            dot(a[first + 2u * A_STRIDE + k], own_x),
            dot(a[first + 3u * A_STRIDE + k], own_x),
        );
    }
    let xy = reduce_add2(sums.xy, lane);
    let zw = reduce_add2(sums.zw, lane);
    let all_squares = reduce_add2(vec2f(squares), lane).x;
    if lane == 0u {
        low[own.low + t * COLUMN_FOURS + c] = root(all_squares, K) * wanted * vec4f(xy, zw);
    }
}

// The first column that row t has and the end of those, in fours.
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
        low[COLUMNS_AT + t] = vec4f(f32(least), most, 0.0, 0.0);
    }
}
