mod nothing {
    tracewright_dsl::model! {}
//  ^^^^^^^^^^^^^^^^^^^^^^^^^^ `model!` declares nothing
}

fn main() {}
