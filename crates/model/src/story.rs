//! A run in plain words. Steps say what they do; nobody listens while states are counted.

/// What the steps of a run said.
#[derive(Debug, Default)]
pub(crate) struct Story {
    told: Option<String>,
    listens: bool,
}

impl Story {
    pub(crate) fn listening() -> Story {
        Story { told: None, listens: true }
    }

    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        if self.listens {
            match &mut self.told {
                Some(told) => {
                    told.push_str("; ");
                    told.push_str(&what());
                }
                None => self.told = Some(what()),
            }
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.told.unwrap_or_default()
    }
}
