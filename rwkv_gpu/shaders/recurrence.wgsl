// Parts of recurrences over a matrix of state.

//# gain: The factor of the normed y of a head: weight · then(gate)
// needs recurrence/delta_tensors or extra: parameter_at; kernel: item_place; lib/activation: activation
@group(0) @binding(8) var<storage, read> gate: array<vec4f>;            // [T, H, N / 4]

fn gain_at(block: Block, i: u32) -> vec4f {
    let given = gate[item_place(block, i)];
    let at = GAIN_AT + 4u * (i % N4);
    return vec4f(parameter_at(at), parameter_at(at + 1u), parameter_at(at + 2u), parameter_at(at + 3u)) * vec4f(
        activation(THEN, given.x), activation(THEN, given.y), activation(THEN, given.z), activation(THEN, given.w)
    );
}

//# recurrence: S = decay(S) + d kᵀ, y = output(S r)      one workgroup per segment and head
//
// For RWKV-6 and gated delta nets. The inputs define r, k and v, `decay` the decay of S, `step` d and the S that is read, and
// `output` the processing of y.
// needs decay: prepare_decay; inputs: load_inputs
fn prepare(block: Block, lane: u32) {
    prepare_decay(block, lane);
    load_inputs(block, lane);
}

//# sums
// Two sums over the head for each token of a block: lanes store a part for each vec4, then one lane adds the parts of a token.
var<workgroup> sums: array<f32, ITEMS>;
var<workgroup> squares: array<f32, ITEMS>;

fn token_sum(token: u32) -> f32 {
    var sum = 0.0;
    for (var i = token * N4; i < (token + 1u) * N4; i += 4u) {
        sum += (sums[i] + sums[i + 1u]) + (sums[i + 2u] + sums[i + 3u]);
    }
    return sum;
}

fn token_sum_of_squares(token: u32) -> f32 {
    var sum = 0.0;
    for (var i = token * N4; i < (token + 1u) * N4; i += 4u) {
        sum += (squares[i] + squares[i + 1u]) + (squares[i + 2u] + squares[i + 3u]);
    }
    return sum;
}

//# bonus/first: The present token is weighted by the bonus of its channels. Vectors are first, norm weight and bias [3, H, N / 4].
const GAIN = 1u;

fn first_of(d: u32) -> vec4f { return vectors[d]; }

//# bonus/none
fn first_of(_d: u32) -> vec4f { return vec4f(); }

//# fade/bounded: A decay exp(BOUND · sigmoid(a · A)), which is never below exp(BOUND)
fn faded(a: f32, rate: f32) -> f32 { return exp(BOUND / (1.0 + exp(-a * rate))); }

//# fade/softplus: A decay exp(softplus(a) · A)
// needs lib/softplus: softplus
fn faded(a: f32, rate: f32) -> f32 { return exp(softplus(a) * rate); }

//# row_sum/lane: The sum over the lanes of a row of S: a single lane has the whole row.
const_assert SPLIT == 1u;

fn row_add(v: Rows) -> Rows { return v; }

//# row_sum/subgroup
// The sum over the lanes of a row of S. WGSL does not guarantee it, but every driver puts neighbouring lanes of a
// one-dimensional workgroup next to each other in a subgroup, and subgroups have at least SPLIT lanes.
const_assert ((SPLIT & (SPLIT - 1u)) == 0u);

fn row_add(v: Rows) -> Rows {
    var sum = v;
    for (var far = 1u; far < SPLIT; far *= 2u) {
        sum += subgroupShuffleXor(sum, far);
    }
    return sum;
}
