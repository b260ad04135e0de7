// S = S e^(dt A) + dt x Bᵀ, y = (S C + D x) silu(z)      one workgroup per segment, head and SLICE rows of S, LANES_PER_ROW lanes per row
//
// S stays in registers. All lanes together load BLOCK tokens into workgroup memory, then each lane processes them without a
// barrier. In a step with one row per sequence, each part of S is stored as soon as it is computed, so that stores begin before
// all of S is read. With INPUTS_FIRST, S is loaded last, because it is the largest. Software Vulkan stops an invocation after
// 65,535 iterations of all its loops, so columns are unrolled by UNROLL.
// needs lib/step: kept_state; sum: group_sum; lib/softplus: softplus; output: collect_output, quantise_output
// needs state: load_state, store_state; xbc: xbc_at
@group(0) @binding(2) var<storage, read> projected: array<vec4f>;       // [T, STRIDE], z [H, P] first and dt [H] last
@group(0) @binding(3) var<storage, read> parameters: array<vec4f>;      // the bias of dt, A and D, [H] each; then those of a convolution, if it is fused
@group(0) @binding(4) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(6) var<storage, read_write> y: array<f32>;           // [T, H, P]

const_assert WG == SLICE * LANES_PER_ROW;
const_assert P % SLICE == 0u;
const_assert SLICE % 4u == 0u;
const_assert N % (4u * LANES_PER_ROW * UNROLL) == 0u;
const_assert BLOCK <= WG;
const_assert ROW_EACH == 1u || INPUTS_FIRST == 0u;
const N4 = N / 4u;
const P4 = P / 4u;
const SLICE4 = SLICE / 4u;
const SLICES = P / SLICE;
const ROW4 = H * P4 + 2u * G * N4;      // vec4s of a row of x, B and C
const COLUMNS = N4 / LANES_PER_ROW;     // vec4s of a row per lane: every LANES_PER_ROW-th, so that neighbouring lanes read neighbouring memory
const X_LANE = 2u * BLOCK * N4 % WG;    // the first lane that loads x, after those that load B and C
const GATE_LANE = (X_LANE + (BLOCK * SLICE4 + 31u) / 32u * 32u) % WG;   // the first lane that loads a gate, in another subgroup

var<workgroup> block_b: array<vec4f, BLOCK * N4>;
var<workgroup> block_c: array<vec4f, BLOCK * N4>;
var<workgroup> block_x: array<vec4f, BLOCK * SLICE4>;
var<workgroup> block_gate: array<f32, BLOCK * SLICE>;   // silu(z)
var<workgroup> block_steps: array<vec2f, BLOCK>;        // dt and e^(dt A)

fn run(group: u32, lane: u32) {
    if group / (H * SLICES) >= step.segments {
        return;
    }
    let segment = segments[group / (H * SLICES)];
    let first = group % (H * SLICES) * SLICE;           // the first of the rows of all heads
    let head = first / P;
    let own = lane / LANES_PER_ROW;
    let part = lane % LANES_PER_ROW;
    let source = (segment.source * H * P + first + own) * N4 + part;
    let written = (segment.written * H * P + first + own) * N4 + part;
    let skip = parameter_at(2u * H + head);
    if INPUTS_FIRST == 1u {
        prepare(segment, segment.first, 1u, first, lane);
    }
    var s: array<vec4f, COLUMNS>;
    for (var c = 0u; c < COLUMNS; c++) {
        s[c] = vec4f();
        if segment.start > 0u {
            s[c] = load_state(source + c * LANES_PER_ROW);
        }
    }
    if INPUTS_FIRST == 1u {
        workgroupBarrier();
    }
    for (var done = 0u; done < segment.count; done += BLOCK) {
        let tokens = min(BLOCK, segment.count - done);
        if INPUTS_FIRST == 0u {
            workgroupBarrier();         // all lanes have read the previous block
            prepare(segment, segment.first + done, tokens, first, lane);
            workgroupBarrier();
        }
        for (var token = 0u; token < tokens; token++) {
            let steps = block_steps[token];
            let base = token * N4 + part;
            let at = token * SLICE + own;
            let x = block_x[at / 4u][at % 4u];
            var sums = vec4f();
            for (var c = 0u; c < COLUMNS; c += UNROLL) {
                sums += advance(&s, c, base, steps, x, written);
                if UNROLL > 1u {
                    sums += advance(&s, c + UNROLL / 2u, base, steps, x, written);
                }
                if UNROLL > 2u {
                    sums += advance(&s, c + 1u, base, steps, x, written);
                    sums += advance(&s, c + 3u, base, steps, x, written);
                }
            }
            let out = group_sum(dot(sums, vec4f(1.0)), LANES_PER_ROW);
            if part == 0u {
                let value = fma(skip, x, out) * block_gate[at];
                y[(segment.first + done + token) * H * P + first + own] = value;
                collect_output(own, value);
            }
            if done + token < segment.kept {
                let kept = (kept_state(segment, done + token) * H * P + first + own) * N4 + part;
                for (var c = 0u; c < COLUMNS; c++) {
                    store_state(kept + c * LANES_PER_ROW, s[c]);
                }
            }
        }
    }
    if ROW_EACH == 0u {
        for (var c = 0u; c < COLUMNS; c++) {
            store_state(written + c * LANES_PER_ROW, s[c]);
        }
    }
    quantise_output(segment.first, first, lane);
}

// Advances four numbers of S by a token. Returns their part of S C.
fn advance(s: ptr<function, array<vec4f, COLUMNS>>, c: u32, base: u32, steps: vec2f, x: f32, written: u32) -> vec4f {
    let at = base + c * LANES_PER_ROW;
    let now = fma((*s)[c], vec4f(steps.y), steps.x * x * block_b[at]);
    (*s)[c] = now;
    if ROW_EACH == 1u {
        store_state(written + c * LANES_PER_ROW, now);
    }
    return now * block_c[at];
}

// Loads the values of a block of tokens that do not depend on S. The loops begin at different lanes. A subgroup without
// work in one loop starts the next loop, so all loads are in flight at once.
fn prepare(segment: Segment, row: u32, tokens: u32, first: u32, lane: u32) {
    let head = first / P;
    let b = H * P4 + head / (H / G) * N4;
    let leads = first % (H / G * P) == 0u;      // true for the first of the workgroups that share B and C
    let items = tokens * N4;
    for (var i = lane; i < 2u * items; i += WG) {       // first B, then C
        let of_c = i >= items;
        let e = select(i, i - items, of_c);
        let value = xbc_at(segment, row + e / N4, b + select(0u, G * N4, of_c) + e % N4, leads);
        if of_c {
            block_c[e] = value;
        } else {
            block_b[e] = value;
        }
    }
    for (var i = (lane + WG - X_LANE) % WG; i < tokens * SLICE4; i += WG) {
        block_x[i] = xbc_at(segment, row + i / SLICE4, first / 4u + i % SLICE4, true);
    }
    for (var i = (lane + WG - GATE_LANE) % WG; i < tokens * SLICE; i += WG) {
        let z = projected_at((row + i / SLICE) * STRIDE + first + i % SLICE);
        block_gate[i] = z / (1.0 + exp(-z));
    }
    let token = WG - 1u - lane;
    if token < tokens {
        let dt = softplus(projected_at((row + token) * STRIDE + STRIDE - H + head) + parameter_at(head));
        block_steps[token] = vec2f(dt, exp(dt * parameter_at(H + head)));
    }
}

// One number of a vec4. Drivers merge the loads of neighbouring lanes into one load of the vec4.
fn projected_at(i: u32) -> f32 { return projected[i / 4u][i % 4u]; }

fn parameter_at(i: u32) -> f32 { return parameters[i / 4u][i % 4u]; }
