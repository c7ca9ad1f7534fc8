"""podium: engine orchestration for omni-modal inference."""
