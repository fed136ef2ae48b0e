"""From a trained policy to the robot: the policy contract, the verified export, and the controller.

Everything here but `deploy.exporter` imports only numpy and onnxruntime.
"""
