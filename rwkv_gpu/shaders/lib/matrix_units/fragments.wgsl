// The sums of a tile, by subgroups with FM x FT fragments of S x S each; the next step is prefetched
//
// Subgroups divide rows of W, rows of x, or columns. If they divide columns, their sums are added up at the end.
// Each fragment is a variable, as drivers keep arrays of fragments in memory. Those beyond FM and FT are never computed.
// needs further columns: ask_adapters, stage_adapters
// needs lib/matrix_units/tile: copy_down, place_of, put_down, raw_at, x_at
// needs lib/matrix_units/sums: finish_all, finish_one, fragment_at
const OWN4 = C4 / ALONG_K;              // vec4s of a step per subgroup
const_assert OWN4 * 4u % S == 0u;

fn multiply(lane: u32) {
    // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
    let here = workgroupUniformLoad(&bounds).xyz;
    if here.x >= here.y {
        return;
    }
    let subgroup = lane / SUBGROUP;
    let from4 = subgroup / (ALONG_M * ALONG_T) * OWN4;
    let m0 = subgroup % ALONG_M * FM * S;
    let t0 = subgroup / ALONG_M % ALONG_T * FT * S;
    #for j in 0..4: var c0{j} = Sums(); var c1{j} = Sums(); var c2{j} = Sums(); var c3{j} = Sums();
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
                #for i in 1..4: let a{i} = coopLoadT<Left>(&w_tile[w0 + min({i}u, FM - 1u) * S * STRIDE], STRIDE);
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
                #for j in 2..4
                if FT > {j}u {
                    let b{j} = coopLoad<Right>(&x_tile[x0 + {j}u * S * STRIDE], STRIDE);
                    c0{j} = coopMultiplyAdd(a0, b{j}, c0{j});
                    if FM > 1u { c1{j} = coopMultiplyAdd(a1, b{j}, c1{j}); }
                    if FM > 2u { c2{j} = coopMultiplyAdd(a2, b{j}, c2{j}); c3{j} = coopMultiplyAdd(a3, b{j}, c3{j}); }
                }
                #end
            }
            workgroupBarrier();
        }
    }
    // One copy of the code stores and finishes all fragments. With a copy of the epilogue for each of sixteen
    // fragments, a kernel would have 8,000 instructions; on an H200, fetching them takes a tenth of a prompt's time.
    // The loop count comes from memory, so that compilers do not unroll the loop.
    for (var n = 0u; n < FM * FT; n++) {
        if lane == 0u {
            bounds = vec4u(here, n);
        }
        let fragment = workgroupUniformLoad(&bounds).w;
        let i = fragment % FM;
        let j = fragment / FM;
        let to = fragment_at(subgroup, i, j);
        switch 4u * j + i {
            #for i in 1..4: case {i}u: { coopStore(c{i}0, &y_tile[to], S); }
            #for j in 1..4
            case 4u * {j}u: { coopStore(c0{j}, &y_tile[to], S); }
            #for i in 1..4: case 4u * {j}u + {i}u: { coopStore(c{i}{j}, &y_tile[to], S); }
            #end
            default: { coopStore(c00, &y_tile[to], S); }
        }
        finish_one(i, j, lane);
    }
    finish_all(lane);
}
