// The activations, by their number in the vocabulary.
fn activation(which: u32, y: f32) -> f32 {
    switch which {
        case NONE: { return y; }
        case RELU2: { return max(y, 0.0) * max(y, 0.0); }
        case SILU: { return y / (1.0 + exp(-y)); }
        case SIGMOID: { return 1.0 / (1.0 + exp(-y)); }
        // Some drivers' tanh overflows past 44; from 10 on it is 1 to the last bit anyway.
        case TANH: { return tanh(clamp(y, -10.0, 10.0)); }
        case DECAY: { return exp(-0.606531 / (1.0 + exp(-y))); }
        case DECAY6: { return exp(-exp(min(y, 80.0))); }
        case GELU: {
            return 0.5 * y * (1.0 + tanh(clamp(0.7978845608 * y * (1.0 + 0.044715 * y * y), -10.0, 10.0)));
        }
        case SOFTPLUS: { return select(log(1.0 + exp(min(y, 20.0))), y, y > 20.0); }
        case RELU: { return max(y, 0.0); }
        default: { return y; }
    }
}
