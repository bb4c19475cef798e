Attribute VB_Name = "Tilewise"
Option Explicit
' C = A x B by the kernel of this export. tilewise.dll lies beside the workbook, or in a folder of PATH.
' Arrays are of {{type}}, two-dimensional, with any lower bound: MultiplyMatrices A, B, C.
#If VBA7 Then
Private Declare PtrSafe Function matmul_cuda Lib "tilewise.dll" (ByRef A As {{type}}, _
    ByRef B As {{type}}, ByRef C As {{type}}, ByVal M As Long, ByVal N As Long, ByVal K As Long) As Long
Private Declare PtrSafe Function matmul_cuda_error Lib "tilewise.dll" (ByVal Buffer As String, _
    ByVal Room As Long) As Long
Private Declare PtrSafe Sub matmul_cuda_close Lib "tilewise.dll" ()
#Else
Private Declare Function matmul_cuda Lib "tilewise.dll" (ByRef A As {{type}}, _
    ByRef B As {{type}}, ByRef C As {{type}}, ByVal M As Long, ByVal N As Long, ByVal K As Long) As Long
Private Declare Function matmul_cuda_error Lib "tilewise.dll" (ByVal Buffer As String, ByVal Room As Long) As Long
Private Declare Sub matmul_cuda_close Lib "tilewise.dll" ()
#End If

Public Sub MultiplyMatrices(A() As {{type}}, B() As {{type}}, C() As {{type}})
    Dim M As Long, N As Long, K As Long, Status As Long, Words As String
    M = UBound(A, 1) - LBound(A, 1) + 1
    K = UBound(A, 2) - LBound(A, 2) + 1
    N = UBound(B, 2) - LBound(B, 2) + 1
    If UBound(B, 1) - LBound(B, 1) + 1 <> K Then Err.Raise 5, "Tilewise", "A's columns are not as many as B's rows"
    ReDim C(1 To M, 1 To N)
    Status = matmul_cuda(A(LBound(A, 1), LBound(A, 2)), B(LBound(B, 1), LBound(B, 2)), C(1, 1), M, N, K)
    If Status <> 0 Then
        Words = Space$(512)
        Words = Left$(Words, matmul_cuda_error(Words, 512))
        Err.Raise vbObjectError + Status, "Tilewise", Words
    End If
End Sub

Public Sub CloseTilewise()
    matmul_cuda_close
End Sub
