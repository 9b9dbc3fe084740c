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
        dims { D = hidden_size, E = hidden_size }
        query: Linear[D -> E] at self.query,
        //                       ^^^^ expected the key in quotes, as in `at "self.query"`
        key: Linear[D -> E] = tied(query) at "self.key",
        //                                ^^ expected `,`
        value: Linear[D -> E] as "self.value",
        //                    ^^ expected `,`
        fn forward(x: T[B, D]) -> T[B, E] { self.query(self.key(self.value(x))) }
    }
}

fn main() {}
