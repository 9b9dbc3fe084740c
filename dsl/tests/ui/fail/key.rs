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
        dims { D = hidden_size, E = hidden_size, L = num_layers }
        a: Linear[D -> E] at "",
        //                   ^^ a key is words between dots, as in `"self.query"`, without spaces and quotes
        b: Linear[D -> E] at "self..query",
        //                   ^^^^^^^^^^^^^ a key is words between dots
        c: Linear[D -> E] at "self query",
        //                   ^^^^^^^^^^^^ a key is words between dots
        d: Linear[D -> E] at "queries.*",
        //                   ^^^^^^^^^^^ a key with `*` names the tensors that a `Weight` is made of
        e: Weight[D] at "experts.*.layers.*.scale",
        //              ^^^^^^^^^^^^^^^^^^^^^^^^^^ a key has one `*`, which counts along the first axis of the weight
        f: Weight[] at "experts.*.scale",
        //             ^^^^^^^^^^^^^^^^^ a key with `*` names the tensors that a `Weight` is made of
        g: [Layer; L] at "layers.*",
        //               ^^^^^^^^^^ a key with `*` names the tensors that a `Weight` is made of
        h: Linear[D -> E] at "i",
        //                   ^^^ `i` has this key already; `tied(i)` is how weights are shared
        i: RmsNorm[D],
        j: Weight[D] at "experts.w*",
        //              ^^^^^^^^^^^^ a key is words between dots
        fn forward(x: T[B, D]) -> T[B, D] {
            let x = self.d(self.c(self.b(self.a(x)))) + self.e() * self.f() + self.j();
            self.i(self.h(self.g[0].forward(x)))
        }
    }
    Layer {
        first: RmsNorm[D] at "norm",
        second: RmsNorm[D] at "norm",
        //                    ^^^^^^ `first` has this key already; `tied(first)` is how weights are shared
        fn forward(x: T[B, D]) -> T[B, D] { self.first(self.second(x)) }
    }
}

fn main() {}
