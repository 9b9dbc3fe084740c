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
        dims { D = hidden_size }
        pub norm: RmsNorm[D],
//      ^^^ the fields and functions of a block are public already; remove `pub`
        up: Linear[D => E],
        //           ^ expected `,`
        head: Linear[D -> E] = shared(norm),
        //                     ^^^^^^ expected `tied(field.path)`
        weights { D }
//      ^^^^^^^ unknown section `weights`
        fn forward(x: T[B, 3]) -> T[B, D] { self.norm(x) }
        //                 ^ expected the name of an axis
        fn other<U>(x: T[B, D]) -> T[B, D] { self.norm(x) }
        //      ^ a function of a block has no generics of its own
        fn last(x: T[B, D]) -> T[B, D];
        //                            ^ expected the function's body in braces
    }
    Mlp = 3 {}
    //  ^ expected curly braces
    Last {
        norm: RmsNorm[D](eps = [1.0]),
        //                     ^ expected a configuration key or a literal
        up: Linear[D -> E] Linear[D -> E],
        //                 ^^^^^^ expected `,`
    }
}

fn main() {}
