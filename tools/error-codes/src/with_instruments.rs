//! Lists the codes of errors from measuring, comparing and calibrating networks.

use instruments::profile::ProfileError;

use crate::coded;

coded! {
    ProfileError: File {
        TW1006: Syntax;
        TW1007: Variant Entry Network;
    }
}

#[cfg(feature = "iree")]
mod running {
    use instruments::bench::BenchError;
    use instruments::bisect::BisectError;
    use instruments::calibrate::CalibrateError;
    use instruments::quality::QualityError;
    use instruments::tune::TuneError;

    use crate::coded;

    coded! {
        BenchError: Plan Load Model Random Generate Archive File {
            TW1002: Depth;
            TW1008: Chunks NotWatched;
            TW0005: Stopped;
        }

        BisectError: Lower Load Model Call Evaluate File Runtime {
            TW0005: Stopped;
        }

        CalibrateError: Part Plan Archive {
            TW0516: Between Embeds;
            TW1010: Short;
            TW0812: NotFinite;
            TW0005: Interrupted;
        }

        QualityError: Model {
            TW1010: Short Window Vocabulary;
            TW0812: NotFinite;
            TW0005: Interrupted;
        }

        TuneError: Plan Lower Evaluate Compile Runtime File Bench {
            TW1004: Wrong;
            TW0005: Stopped;
        }
    }
}
