// The sums of a tile of R rows of W by `live` fragments of x, by subgroups that have FM fragments of W each
//
// Subgroups divide rows of W and the columns of a step; the next step is prefetched. Each fragment is a variable, as
// drivers keep arrays of fragments in memory. Those beyond FM and `live` are never computed.
// needs format: run_raw; moe/expert_gemm_matrix: w_run, x_row; moe/matrix_sums: put_fragments
// needs moe/matrix_tile: copy_down, here, put_down, unit_of, x_four_of, x_here; x: rounded_four, x_four, x_start
const_assert FM == 1u || FM == 2u || FM == 4u;
const_assert TB <= 4u * S;

fn multiply(lane: u32) {
    // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
    let count = min(workgroupUniformLoad(&live).x, TB / S);
    if count == 0u {
        return;
    }
    let subgroup = lane / SUBGROUP;
    let from4 = subgroup / ALONG_M * OWN4;
    let own_m = subgroup % ALONG_M * FM * S;
    #for j in 0..4: var c0{j} = Sums(); var c1{j} = Sums(); var c2{j} = Sums(); var c3{j} = Sums();
    var w_from: array<u32, W_LOADS>;
    var x_from: array<u32, X_LOADS>;
    for (var n = 0u; n < W_LOADS; n++) {
        w_from[n] = w_run((n * WG + lane) / UNITS) + unit_of(n * WG + lane) * PARTS;
    }
    for (var n = 0u; n < X_LOADS; n++) {
        x_from[n] = x_start(x_row((n * WG + lane) / C4), x_four_of(n * WG + lane));
    }
    var raw: array<Raw, W_LOADS * PARTS>;
    var fours: array<XFour, X_LOADS>;
    for (var n = 0u; n < W_LOADS; n++) {
        for (var p = 0u; p < PARTS; p++) {
            raw[n * PARTS + p] = run_raw(w_from[n] + here(0u, n * WG + lane) + p);
        }
    }
    for (var n = 0u; n < X_LOADS; n++) {
        if n * WG / C4 < count * S {
            fours[n] = x_four(x_from[n], x_four_of(n * WG + lane), x_here(0u, n * WG + lane));
        }
    }
    for (var s = 0u; s < STEPS; s++) {
        workgroupBarrier();
        for (var n = 0u; n < W_LOADS; n++) {
            for (var p = 0u; p < PARTS; p++) {
                put_down(raw[n * PARTS + p], w_from[n] + here(s, n * WG + lane) + p, s, n * WG + lane, p);
            }
        }
        for (var n = 0u; n < X_LOADS; n++) {
            if n * WG / C4 < count * S {
                copy_down(rounded_four(fours[n]), n * WG + lane);
            }
        }
        workgroupBarrier();
        let next = min(s + 1u, STEPS - 1u);
        for (var n = 0u; n < W_LOADS; n++) {
            for (var p = 0u; p < PARTS; p++) {
                raw[n * PARTS + p] = run_raw(w_from[n] + here(next, n * WG + lane) + p);
            }
        }
        for (var n = 0u; n < X_LOADS; n++) {
            if n * WG / C4 < count * S {
                fours[n] = x_four(x_from[n], x_four_of(n * WG + lane), x_here(next, n * WG + lane));
            }
        }
        for (var k = 0u; k < OWN4; k += S / 4u) {
            let w0 = own_m * STRIDE + from4 + k;
            let x0 = from4 + k;
            let a0 = coopLoadT<Left>(&w_step[w0], STRIDE);
            #for i in 1..4: let a{i} = coopLoadT<Left>(&w_step[w0 + min({i}u, FM - 1u) * S * STRIDE], STRIDE);
            let b0 = coopLoad<Right>(&x_step[x0], STRIDE);
            c00 = coopMultiplyAdd(a0, b0, c00);
            if FM > 1u { c10 = coopMultiplyAdd(a1, b0, c10); }
            if FM > 2u { c20 = coopMultiplyAdd(a2, b0, c20); c30 = coopMultiplyAdd(a3, b0, c30); }
            if count > 1u {
                let b1 = coopLoad<Right>(&x_step[x0 + S * STRIDE], STRIDE);
                c01 = coopMultiplyAdd(a0, b1, c01);
                if FM > 1u { c11 = coopMultiplyAdd(a1, b1, c11); }
                if FM > 2u { c21 = coopMultiplyAdd(a2, b1, c21); c31 = coopMultiplyAdd(a3, b1, c31); }
            }
            #for j in 2..4
            if count > {j}u {
                let b{j} = coopLoad<Right>(&x_step[x0 + {j}u * S * STRIDE], STRIDE);
                c0{j} = coopMultiplyAdd(a0, b{j}, c0{j});
                if FM > 1u { c1{j} = coopMultiplyAdd(a1, b{j}, c1{j}); }
                if FM > 2u { c2{j} = coopMultiplyAdd(a2, b{j}, c2{j}); c3{j} = coopMultiplyAdd(a3, b{j}, c3{j}); }
            }
            #end
        }
    }
    let place = subgroup * FM * S * S;
    coopStore(c00, &y_tile[place], S);
    if FM > 1u { coopStore(c10, &y_tile[place + S * S], S); }
    if FM > 2u { coopStore(c20, &y_tile[place + 2u * S * S], S); coopStore(c30, &y_tile[place + 3u * S * S], S); }
    put_fragments(0u, lane);
    #for j in 1..4
    if count > {j}u {
        coopStore(c0{j}, &y_tile[place], S);
        if FM > 1u { coopStore(c1{j}, &y_tile[place + S * S], S); }
        if FM > 2u { coopStore(c2{j}, &y_tile[place + 2u * S * S], S); coopStore(c3{j}, &y_tile[place + 3u * S * S], S); }
        put_fragments({j}u, lane);
    }
    #end
}
