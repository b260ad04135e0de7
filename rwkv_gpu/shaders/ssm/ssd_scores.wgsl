// B and C of a chunk as float16, and their products C_t · B_i      one workgroup per chunk, group and S tokens t, on matrix units
//
// All heads of a group share them. Each row is scaled by a power of two, so that none overflows.
// needs ssm/ssd_slots: first_slot
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P], B and C [T, G, N] in one row
@group(0) @binding(7) var<storage, read_write> halves: array<vec4<f16>>;
@group(0) @binding(8) var<storage, read_write> floats: array<f32>;

const_assert WG == 4u * SUBGROUP;
const_assert N4 % SHARE == 0u && SHARE <= SUBGROUP;     // lanes that share a row
const_assert 5u * S % (WG / SHARE) == 0u;
const APART = N4 + 2u;                  // distance of rows in workgroup memory in vec4s, so that they lie in different banks
const OWN = N4 / SHARE;

var<workgroup> rows: array<vec4<f16>, 5u * S * APART>;  // C of S tokens, then B of all tokens
// The first row of the chunk, and its tokens. It takes 16 bytes, as NVIDIA's loads of fragments assume tiles at
// multiples of 16.
var<workgroup> extent: vec4u;

fn run(group: u32, lane: u32) {
    let slot = group / (4u * G);
    let own_group = group / 4u % G;
    let tile = group % 4u;
    if lane == 0u {
        extent = vec4u(extent_of(slot), 0u, 0u);
    }
    // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
    let here = workgroupUniformLoad(&extent).xy;
    if here.y == 0u {
        return;
    }
    let place = (slot * G + own_group) * 2u * HALVES4;
    let sums_at = (slot * G + own_group) * FLOATS4 * 4u;
    let part = lane % SHARE;
    for (var row = lane / SHARE; row < 5u * S; row += WG / SHARE) {
        let of_c = row < S;
        let token = select(row - S, tile * S + row, of_c);
        let at = (here.x + min(token, here.y - 1u)) * ROW4 + H * P4 + (select(0u, G, of_c) + own_group) * N4 + part;
        var values: array<vec4f, OWN>;
        var most = 1e-30;
        for (var c = 0u; c < OWN; c++) {
            values[c] = select(xbc[at + c * SHARE], vec4f(), vec4<bool>(token >= here.y));
            let sizes = abs(values[c]);
            most = max(most, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
        }
        for (var far = 1u; far < SHARE; far *= 2u) {
            most = max(most, subgroupShuffleXor(most, far));
        }
        let exponent = frexp(most).exp;
        let stores = of_c || token / S == tile;
        for (var c = 0u; c < OWN; c++) {
            let rounded = vec4<f16>(values[c] * ldexp(1.0, -exponent));
            rows[row * APART + c * SHARE + part] = rounded;
            if stores {
                halves[place + select(HALVES4, 0u, of_c) + token * N4 + c * SHARE + part] = rounded;
            }
        }
        if stores && part == 0u {
            floats[sums_at + 4u * POWERS4 + select(LENGTH, 0u, of_c) + token] = ldexp(1.0, exponent);
        }
    }
    workgroupBarrier();
    let i = lane / SUBGROUP;
    var sums = Sums();
    for (var k = 0u; k < N4; k += S / 4u) {
        let c = coopLoadT<Left>(&rows[k], APART);
        let b = coopLoad<Right>(&rows[(S + i * S) * APART + k], APART);
        sums = coopMultiplyAdd(c, b, sums);
    }
    coopStore(sums, &floats[sums_at + i * S * LENGTH + tile * S], LENGTH);
}

// The first row of a chunk, and its number of tokens; 0 if there is no such chunk.
fn extent_of(slot: u32) -> vec2u {
    if step.segments == 0u {
        return vec2u();
    }
    var segment = 0u;
    while segment + 1u < step.segments && first_slot(segment + 1u) <= slot {
        segment++;
    }
    let done = (slot - first_slot(segment)) * LENGTH;
    let count = segments[segment].count;
    return vec2u(segments[segment].first + done, select(0u, min(LENGTH, count - done), done < count));
}
