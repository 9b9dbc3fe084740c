use tracewright_dsl::*;

#[derive(Clone)]
struct Config {
    hidden_size: usize,
    num_layers: usize,
    head_dim: Option<usize>,
    tied: bool,
    eps: f64,
}

model! {
    Net<T: Float>(Config) {
        dims { Width = hidden_size, KV = 3, Dim1 = 2 }
        up: Linear[Width -> KV],
        side: Linear[Width -> Dim1],
        fn forward(x: T[B, Widht]) -> T[B, KV] { self.other(self.up(x), x, x, self.side(x)).0 }
        //                 ^^^^^ `dims` has no `Widht`, and only this place names it; did you mean `Width`?
        fn other(x: T[B, Kv], y: T[B, Wide], z: T[B, Widths], u: T[B, Dim2]) -> (T[B, KV], T[B, Widths]) {
            //           ^^ `dims` has no `Kv`, and only this place names it; did you mean `KV`?
            (x, y + z + u)
        }
    }
}

fn main() {}
