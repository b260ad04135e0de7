// The sums of a tile, by subgroups that have FM x FT fragments of S x S each; what is multiplied next is on its way meanwhile
//
// Subgroups have rows of W, rows of x, or columns to themselves: where they share out columns, their sums meet in the end.
// Each fragment has a name, as drivers keep arrays of fragments in memory. Those beyond FM and FT are never computed.
// needs further columns: ask_adapters, stage_adapters
// needs lib/matrix_units/tile: copy_down, place_of, put_down, raw_at, x_at
// needs lib/matrix_units/sums: finish_all, finish_one, fragment_at
const OWN4 = C4 / ALONG_K;              // vec4s of a step that a subgroup multiplies
const_assert OWN4 * 4u % S == 0u;

fn multiply(lane: u32) {
    // Matrix units want control flow that naga can prove uniform: it takes what is loaded like this for uniform.
    let here = workgroupUniformLoad(&bounds).xyz;
    if here.x >= here.y {
        return;
    }
    let subgroup = lane / SUBGROUP;
    let from4 = subgroup / (ALONG_M * ALONG_T) * OWN4;
    let m0 = subgroup % ALONG_M * FM * S;
    let t0 = subgroup / ALONG_M % ALONG_T * FT * S;
    var c00 = Sums(); var c10 = Sums(); var c20 = Sums(); var c30 = Sums();
    var c01 = Sums(); var c11 = Sums(); var c21 = Sums(); var c31 = Sums();
    var c02 = Sums(); var c12 = Sums(); var c22 = Sums(); var c32 = Sums();
    var c03 = Sums(); var c13 = Sums(); var c23 = Sums(); var c33 = Sums();
    var raw: array<Raw, W_LOADS * DEPTH>;
    var fours: array<vec4<f16>, X_LOADS * DEPTH>;
    for (var a = 0u; a < DEPTH; a++) {
        for (var n = 0u; n < W_LOADS; n++) {
            raw[a * W_LOADS + n] = raw_at(n * WG + lane, min(here.x + a, here.y - 1u));
        }
        for (var n = 0u; n < X_LOADS; n++) {
            fours[a * X_LOADS + n] = x_at(n * WG + lane, min(here.x + a, here.y - 1u));
        }
    }
    for (var first = here.x; first < here.z; first += DEPTH) {
        for (var a = 0u; a < DEPTH; a++) {
            let at = first + a;
            if DEPTH > 1u && at >= here.z {
                break;
            }
            if ADAPTER_STEPS > 0u && at >= here.y {
                stage_adapters(ask_adapters(at - here.y, lane), lane);
            } else {
                for (var n = 0u; n < W_LOADS; n++) {
                    put_down(raw[a * W_LOADS + n], at, n * WG + lane);
                }
                for (var n = 0u; n < X_LOADS; n++) {
                    copy_down(fours[a * X_LOADS + n], n * WG + lane);
                }
                workgroupBarrier();
            }
            let next = min(at + DEPTH, here.y - 1u);
            for (var n = 0u; n < W_LOADS; n++) {
                raw[a * W_LOADS + n] = raw_at(n * WG + lane, next);
            }
            for (var n = 0u; n < X_LOADS; n++) {
                fours[a * X_LOADS + n] = x_at(n * WG + lane, next);
            }
            for (var k = 0u; k < OWN4; k += S / 4u) {
                let w0 = place_of(R, m0, from4 + k);
                let x0 = place_of(TB, t0, from4 + k);
                let a0 = coopLoadT<Left>(&w_tile[w0], STRIDE);
                let a1 = coopLoadT<Left>(&w_tile[w0 + min(1u, FM - 1u) * S * STRIDE], STRIDE);
                let a2 = coopLoadT<Left>(&w_tile[w0 + min(2u, FM - 1u) * S * STRIDE], STRIDE);
                let a3 = coopLoadT<Left>(&w_tile[w0 + min(3u, FM - 1u) * S * STRIDE], STRIDE);
                let b0 = coopLoad<Right>(&x_tile[x0], STRIDE);
                c00 = coopMultiplyAdd(a0, b0, c00);
                if FM > 1u { c10 = coopMultiplyAdd(a1, b0, c10); }
                if FM > 2u { c20 = coopMultiplyAdd(a2, b0, c20); c30 = coopMultiplyAdd(a3, b0, c30); }
                if FT > 1u {
                    let b1 = coopLoad<Right>(&x_tile[x0 + S * STRIDE], STRIDE);
                    c01 = coopMultiplyAdd(a0, b1, c01);
                    if FM > 1u { c11 = coopMultiplyAdd(a1, b1, c11); }
                    if FM > 2u { c21 = coopMultiplyAdd(a2, b1, c21); c31 = coopMultiplyAdd(a3, b1, c31); }
                }
                if FT > 2u {
                    let b2 = coopLoad<Right>(&x_tile[x0 + 2u * S * STRIDE], STRIDE);
                    c02 = coopMultiplyAdd(a0, b2, c02);
                    if FM > 1u { c12 = coopMultiplyAdd(a1, b2, c12); }
                    if FM > 2u { c22 = coopMultiplyAdd(a2, b2, c22); c32 = coopMultiplyAdd(a3, b2, c32); }
                }
                if FT > 3u {
                    let b3 = coopLoad<Right>(&x_tile[x0 + 3u * S * STRIDE], STRIDE);
                    c03 = coopMultiplyAdd(a0, b3, c03);
                    if FM > 1u { c13 = coopMultiplyAdd(a1, b3, c13); }
                    if FM > 2u { c23 = coopMultiplyAdd(a2, b3, c23); c33 = coopMultiplyAdd(a3, b3, c33); }
                }
            }
            workgroupBarrier();
        }
    }
    coopStore(c00, &y_tile[fragment_at(subgroup, 0u, 0u)], S); finish_one(0u, 0u, lane);
    if FM > 1u { coopStore(c10, &y_tile[fragment_at(subgroup, 1u, 0u)], S); finish_one(1u, 0u, lane); }
    if FM > 2u { coopStore(c20, &y_tile[fragment_at(subgroup, 2u, 0u)], S); finish_one(2u, 0u, lane); }
    if FM > 3u { coopStore(c30, &y_tile[fragment_at(subgroup, 3u, 0u)], S); finish_one(3u, 0u, lane); }
    if FT > 1u { coopStore(c01, &y_tile[fragment_at(subgroup, 0u, 1u)], S); finish_one(0u, 1u, lane); }
    if FM > 1u && FT > 1u { coopStore(c11, &y_tile[fragment_at(subgroup, 1u, 1u)], S); finish_one(1u, 1u, lane); }
    if FM > 2u && FT > 1u { coopStore(c21, &y_tile[fragment_at(subgroup, 2u, 1u)], S); finish_one(2u, 1u, lane); }
    if FM > 3u && FT > 1u { coopStore(c31, &y_tile[fragment_at(subgroup, 3u, 1u)], S); finish_one(3u, 1u, lane); }
    if FT > 2u { coopStore(c02, &y_tile[fragment_at(subgroup, 0u, 2u)], S); finish_one(0u, 2u, lane); }
    if FM > 1u && FT > 2u { coopStore(c12, &y_tile[fragment_at(subgroup, 1u, 2u)], S); finish_one(1u, 2u, lane); }
    if FM > 2u && FT > 2u { coopStore(c22, &y_tile[fragment_at(subgroup, 2u, 2u)], S); finish_one(2u, 2u, lane); }
    if FM > 3u && FT > 2u { coopStore(c32, &y_tile[fragment_at(subgroup, 3u, 2u)], S); finish_one(3u, 2u, lane); }
    if FT > 3u { coopStore(c03, &y_tile[fragment_at(subgroup, 0u, 3u)], S); finish_one(0u, 3u, lane); }
    if FM > 1u && FT > 3u { coopStore(c13, &y_tile[fragment_at(subgroup, 1u, 3u)], S); finish_one(1u, 3u, lane); }
    if FM > 2u && FT > 3u { coopStore(c23, &y_tile[fragment_at(subgroup, 2u, 3u)], S); finish_one(2u, 3u, lane); }
    if FM > 3u && FT > 3u { coopStore(c33, &y_tile[fragment_at(subgroup, 3u, 3u)], S); finish_one(3u, 3u, lane); }
    finish_all(lane);
}
