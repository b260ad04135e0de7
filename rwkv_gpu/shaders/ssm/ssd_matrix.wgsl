// S = S e^(dt A) + dt x Bᵀ, y = (S C + D x) silu(z), a chunk at a time      one workgroup per segment, head and 2 S rows of S
//
// On matrix units, with the scores of `ssd_scores`. d_t is the decay from the chunk's start to t. Yᵀ = S₀ (C d)ᵀ + X̃ᵀ M, where M
// has the scores of t and i times the decay between them, and Sᵀ = S₀ᵀ d_last + Bᵀ X̂. X̃ is dt x; X̂ is dt x times the decay to
// the chunk's end. Lanes keep S in float32, and multiply copies in float16, scaled by powers of two.
// needs ssm/ssd_slots: first_slot; state: load_state, store_state; lib/step: kept_state; lib/softplus: softplus
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> xbc: array<vec4f>;             // x [T, H, P], B and C [T, G, N] in one row
@group(0) @binding(2) var<storage, read> projected: array<f32>;         // [T, STRIDE], z [H, P] first and dt [H] last
@group(0) @binding(3) var<storage, read> parameters: array<f32>;        // the bias of dt, A and D, [H] each
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;         // [T, H, P / 4]
@group(0) @binding(7) var<storage, read> halves: array<vec4<f16>>;
@group(0) @binding(8) var<storage, read> floats: array<vec4f>;

const_assert WG == 8u * SUBGROUP;
const_assert WG >= LENGTH;
const_assert N % (4u * S) == 0u;
const_assert P % (2u * S) == 0u;
const_assert S * S % (4u * SUBGROUP) == 0u;
const SLICES = P / (2u * S);
const S4 = S / 4u;
const EACH = S * S4 / SUBGROUP;         // vec4s of a fragment per lane; also vec4s of x per lane
const FRAGMENTS = N / (4u * S);         // fragments of Sᵀ per subgroup
const STATE_APART = N4 + 2u;            // distance of rows in workgroup memory in vec4s, so that they lie in different banks
const SCORES_APART = S + 2u;
const X_APART = 2u * S4 + 2u;
const LARGEST = 14;
const LOG2E = 1.4426950408889634;

var<workgroup> state_tile: array<vec4<f16>, 2u * S * STATE_APART>;      // S [p, n]
var<workgroup> scores: array<vec4<f16>, LENGTH * SCORES_APART>;         // M [i, t]
var<workgroup> x_now: array<vec4<f16>, LENGTH * X_APART>;               // X̃ [i, p]
var<workgroup> x_left: array<vec4<f16>, LENGTH * X_APART>;              // X̂ [i, p]
var<workgroup> sums: array<f32, 8u * S * S>;            // passes a fragment of each subgroup to its lanes, by columns
var<workgroup> steps: array<vec2f, LENGTH>;             // dt, and the decay as a power of two
var<workgroup> decays: array<f32, LENGTH>;              // the decay from the chunk's start, as an exponent of two
// The largest numbers of x and of S. Sizes here are multiples of 16 bytes, which NVIDIA's loads of fragments assume.
var<workgroup> largest: array<atomic<u32>, 4>;
var<workgroup> extent: vec4u;           // the first row of a segment, its tokens, tokens of a chunk, and its first slot

var<private> subgroup: u32;
var<private> sub_lane: u32;

fn run(group: u32, lane: u32) {
    let number = group / (H * SLICES);
    let head = group / SLICES % H;
    let first4 = (head * P + group % SLICES * 2u * S) / 4u;     // the first row of S, counted over all heads in fours
    if lane == 0u {
        extent = vec4u();
        if number < step.segments {
            let own = segments[number];
            extent = vec4u(own.first, own.count, select(LENGTH, 1u, own.kept > 0u), first_slot(number));
        }
        atomicStore(&largest[0], 0u);
        atomicStore(&largest[1], 0u);
    }
    // Matrix units require control flow that naga can prove uniform; it treats values loaded like this as uniform.
    let here = workgroupUniformLoad(&extent);
    if here.y == 0u {
        return;
    }
    let segment = segments[number];
    subgroup = lane / SUBGROUP;
    sub_lane = lane % SUBGROUP;
    var s: array<vec4f, FRAGMENTS * EACH>;
    for (var n = 0u; n < FRAGMENTS * EACH; n++) {
        s[n] = vec4f();
        if segment.start > 0u {
            s[n] = load_state(state_place(segment.source, first4, n));
        }
    }
    var state_power = put_state(&s);
    for (var done = 0u; done < here.y; done += here.z) {
        // A segment whose states are stored is processed token by token, within one slot.
        let low = done % LENGTH;
        let row = here.x + done - low;
        let high = min(low + here.z, here.y - (done - low));
        let slot = (here.w + done / LENGTH) * G + head / (H / G);
        let x_power = prepare(slot, row, low, high, head, first4, lane);
        let last = decays[LENGTH - 1u];
        // y
        let t0 = subgroup % 4u * S;
        let p0 = subgroup / 4u * S4;
        var sum = Sums();
        let c_at = slot * 2u * HALVES4 + t0 * N4;
        let state_at = 4u * p0 * STATE_APART;
        for (var k = 0u; k < N4; k += S) {          // loads four fragments at a time
            let c0 = coopLoad<Right>(&halves[c_at + k], N4);
            let c1 = coopLoad<Right>(&halves[c_at + k + S4], N4);
            let c2 = coopLoad<Right>(&halves[c_at + k + 2u * S4], N4);
            let c3 = coopLoad<Right>(&halves[c_at + k + 3u * S4], N4);
            sum = coopMultiplyAdd(coopLoadT<Left>(&state_tile[state_at + k], STATE_APART), c0, sum);
            sum = coopMultiplyAdd(coopLoadT<Left>(&state_tile[state_at + k + S4], STATE_APART), c1, sum);
            sum = coopMultiplyAdd(coopLoadT<Left>(&state_tile[state_at + k + 2u * S4], STATE_APART), c2, sum);
            sum = coopMultiplyAdd(coopLoadT<Left>(&state_tile[state_at + k + 3u * S4], STATE_APART), c3, sum);
        }
        coopStore(sum, &sums[subgroup * S * S], S);
        workgroupBarrier();
        var out: array<vec4f, EACH>;
        for (var n = 0u; n < EACH; n++) {
            out[n] = ldexp(exp2(decays[t0 + item(n) / S4]), state_power) * sum_at(n);
        }
        workgroupBarrier();
        sum = Sums();
        for (var i = 0u; i < LENGTH; i += S) {
            let x = coopLoad<Left>(&x_now[i * X_APART + p0], X_APART);
            let m = coopLoadT<Right>(&scores[i * SCORES_APART + t0 / 4u], SCORES_APART);
            sum = coopMultiplyAdd(x, m, sum);
        }
        coopStore(sum, &sums[subgroup * S * S], S);
        workgroupBarrier();
        for (var n = 0u; n < EACH; n++) {
            let t = t0 + item(n) / S4;
            if t >= low && t < high {
                let seen = (out[n] + ldexp(1.0, x_power) * sum_at(n)) * power_of(slot, t);
                put(row + t, first4 + p0 + item(n) % S4, head, seen);
            }
        }
        workgroupBarrier();
        // S
        for (var f = 0u; f < FRAGMENTS; f++) {
            let own = subgroup + 8u * f;
            let b_at = (slot * 2u + 1u) * HALVES4 + own / 2u * S4;
            let x_at = own % 2u * S4;
            let b0 = coopLoad<Left>(&halves[b_at], N4);
            let b1 = coopLoad<Left>(&halves[b_at + S * N4], N4);
            let b2 = coopLoad<Left>(&halves[b_at + 2u * S * N4], N4);
            let b3 = coopLoad<Left>(&halves[b_at + 3u * S * N4], N4);
            sum = coopMultiplyAdd(b0, coopLoadT<Right>(&x_left[x_at], X_APART), Sums());
            sum = coopMultiplyAdd(b1, coopLoadT<Right>(&x_left[x_at + S * X_APART], X_APART), sum);
            sum = coopMultiplyAdd(b2, coopLoadT<Right>(&x_left[x_at + 2u * S * X_APART], X_APART), sum);
            sum = coopMultiplyAdd(b3, coopLoadT<Right>(&x_left[x_at + 3u * S * X_APART], X_APART), sum);
            coopStore(sum, &sums[subgroup * S * S], S);
            workgroupBarrier();
            for (var n = 0u; n < EACH; n++) {
                s[f * EACH + n] = exp2(last) * s[f * EACH + n] + ldexp(1.0, x_power) * sum_at(n);
            }
            workgroupBarrier();
        }
        state_power = put_state(&s);
        if done < segment.kept {
            save(&s, kept_state(segment, done), first4);
        }
    }
    save(&s, segment.written, first4);
}

// The n-th vec4 of a fragment for a lane.
fn item(n: u32) -> u32 { return n * SUBGROUP + sub_lane; }

// The part of a fragment that a lane has, by columns: four neighbours of a column.
fn sum_at(n: u32) -> vec4f {
    let at = subgroup * S * S + 4u * item(n);
    return vec4f(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
}

// The place of a lane's n-th vec4 of S. Columns of fragments of Sᵀ are rows of S.
fn state_place(which: u32, first4: u32, n: u32) -> u32 {
    return (which * H * P + 4u * first4) * N4 + row_of(n) * N4 + column_of(n);
}

fn row_of(n: u32) -> u32 { return (subgroup + 8u * (n / EACH)) % 2u * S + item(n % EACH) / S4; }
fn column_of(n: u32) -> u32 { return (subgroup + 8u * (n / EACH)) / 2u * S4 + item(n % EACH) % S4; }

fn save(s: ptr<function, array<vec4f, FRAGMENTS * EACH>>, which: u32, first4: u32) {
    for (var n = 0u; n < FRAGMENTS * EACH; n++) {
        store_state(state_place(which, first4, n), (*s)[n]);
    }
}

// Copies S as float16. Returns the power of two by which its numbers must be multiplied.
fn put_state(s: ptr<function, array<vec4f, FRAGMENTS * EACH>>) -> i32 {
    var most = 0.0;
    for (var n = 0u; n < FRAGMENTS * EACH; n++) {
        most = max(most, size_of((*s)[n]));
    }
    let exponent = exponent_of(1u, most);
    for (var n = 0u; n < FRAGMENTS * EACH; n++) {
        state_tile[row_of(n) * STATE_APART + column_of(n)] = vec4<f16>((*s)[n] * ldexp(1.0, -exponent));
    }
    return exponent;
}

fn size_of(v: vec4f) -> f32 {
    let sizes = abs(v);
    return max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
}

// The power of two by which the largest number of all lanes is divided; `prepare` resets it before the next chunk.
fn exponent_of(which: u32, own: f32) -> i32 {
    var most = own;
    for (var far = 1u; far < SUBGROUP; far *= 2u) {
        most = max(most, subgroupShuffleXor(most, far));
    }
    if sub_lane == 0u {
        atomicMax(&largest[which], bitcast<u32>(most));
    }
    workgroupBarrier();
    return frexp(max(bitcast<f32>(atomicLoad(&largest[which])), 1e-30)).exp - LARGEST;
}

// Decays, X̃, X̂ and M of a chunk; tokens before `low` and from `high` on add nothing. Returns the power of two of X̃
// and X̂.
fn prepare(slot: u32, row: u32, low: u32, high: u32, head: u32, first4: u32, lane: u32) -> i32 {
    if lane < LENGTH {
        steps[lane] = vec2f();
        if lane >= low && lane < high {
            let dt = softplus(projected[(row + lane + 1u) * STRIDE - H + head] + parameters[head]);
            steps[lane] = vec2f(dt, LOG2E * dt * parameters[H + head]);
        }
    }
    var x: array<vec4f, EACH>;
    for (var n = 0u; n < EACH; n++) {
        let i = (n * WG + lane) / (2u * S4);
        x[n] = vec4f();
        if i >= low && i < high {
            x[n] = xbc[(row + i) * ROW4 + first4 + (n * WG + lane) % (2u * S4)];
        }
    }
    if lane == 0u {
        atomicStore(&largest[0], 0u);
    }
    workgroupBarrier();
    if lane < LENGTH {
        var decay = 0.0;
        for (var i = 0u; i < LENGTH; i++) {
            decay += select(0.0, steps[i].y, i <= lane);
        }
        decays[lane] = decay;
    }
    var most = 0.0;
    for (var n = 0u; n < EACH; n++) {
        let i = (n * WG + lane) / (2u * S4);
        x[n] *= steps[i].x * power_of(slot, LENGTH + i);
        most = max(most, size_of(x[n]));
    }
    let exponent = exponent_of(0u, most);       // after a barrier, so decays are complete, too
    if lane == 0u {
        atomicStore(&largest[1], 0u);
    }
    for (var n = 0u; n < EACH; n++) {
        let i = (n * WG + lane) / (2u * S4);
        let at = i * X_APART + (n * WG + lane) % (2u * S4);
        let scaled = x[n] * ldexp(1.0, -exponent);
        x_now[at] = vec4<f16>(scaled);
        x_left[at] = vec4<f16>(scaled * exp2(decays[LENGTH - 1u] - decays[i]));
    }
    for (var e = lane; e < POWERS4; e += WG) {
        let i = e / S;
        let t = 4u * (e % S);
        let ts = vec4u(t, t + 1u, t + 2u, t + 3u);
        let between = exp2(vec4f(decays[t], decays[t + 1u], decays[t + 2u], decays[t + 3u]) - decays[i]);
        let sees = ts >= vec4u(i) & ts < vec4u(high);
        let seen = select(vec4f(), floats[slot * FLOATS4 + e] * between, sees);
        scores[i * SCORES_APART + e % S] = vec4<f16>(seen);
    }
    workgroupBarrier();
    return exponent;
}

// The power of two by which a row of C was divided; rows of B follow those of C.
fn power_of(slot: u32, t: u32) -> f32 { return floats[slot * FLOATS4 + POWERS4 + t / 4u][t % 4u]; }

fn put(row: u32, at4: u32, head: u32, seen: vec4f) {
    let start = row * STRIDE + 4u * at4;
    let z = vec4f(projected[start], projected[start + 1u], projected[start + 2u], projected[start + 3u]);
    let x = xbc[row * ROW4 + at4];
    y[row * H * P4 + at4] = fma(vec4f(parameters[2u * H + head]), x, seen) * (z / (1.0 + exp(-z)));
}
