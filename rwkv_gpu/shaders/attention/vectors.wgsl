// Float32 parameters of a layer's heads, one after the other: the norms of q and k [2, N], then the sinks [H].
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
